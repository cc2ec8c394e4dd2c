"""The desktop, and the dialogs in front of it."""
