"""The terminal side of cudaprefill: it knows an engine as `backend.ChatBackend`, and imports neither it nor torch."""
