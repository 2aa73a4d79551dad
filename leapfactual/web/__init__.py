"""What the servers share: a guard before every request, and a socket that listens."""
