"""The HTTP and websocket server: `app.create_app` makes the application, `run.serve` runs it."""
