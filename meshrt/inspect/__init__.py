"""What a program communicates and why: reports made from the stages' own values, and tables of them."""
