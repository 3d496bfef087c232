"""What the trainer minimises, normalised over the whole global batch."""
