"""Starts one script as many processes and stays in charge of them; see README.md in this directory."""
