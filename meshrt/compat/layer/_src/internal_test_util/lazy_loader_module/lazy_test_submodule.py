"""The module that is loaded when it is asked for."""
