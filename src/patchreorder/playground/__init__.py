"""The playground: a page on which one sees reordering happen, and the server that computes what it shows."""
