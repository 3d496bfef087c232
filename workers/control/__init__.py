"""The controller, and what it decides by: which prompts become rows, which rows make up a step, when to go back."""
