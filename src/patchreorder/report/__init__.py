"""What was measured, as tables and pictures. Never imports torch."""
