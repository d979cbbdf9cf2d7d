"""Where commands run: this machine or a peer over SSH, and what is known about it."""
