"""The Python interface: each function runs a command in a process of its own, and returns what the command found."""
