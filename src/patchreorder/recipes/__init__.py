"""What is drawn, trained and measured: one file per table, figure or demonstration."""
