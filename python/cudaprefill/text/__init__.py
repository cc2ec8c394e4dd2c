"""Text on both sides of the model: prompts and chats to token ids, token ids back to text."""
