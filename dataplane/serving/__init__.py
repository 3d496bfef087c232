"""The host's methods for other processes: frames over a socket."""
