"""For the compiler of TPUs."""
