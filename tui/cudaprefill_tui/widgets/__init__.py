"""The parts of the desktop."""
