"""A job on several hosts: a coordinator, which decides, and an agent on each host, which starts processes there."""
