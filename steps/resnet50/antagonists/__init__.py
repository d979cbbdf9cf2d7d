"""What runs beside a measured program."""
