"""Surgery on any network: insert layers, remove them, and advise where they could help."""
