"""What was measured, as tables and pictures. Imports numpy and matplotlib at most, never torch."""
