"""The command line. A module of this package that exports `command` is a command of its own name."""
