"""What the settings do on the real model, and how well that is foretold. docs/tuning.md is made of the results."""
