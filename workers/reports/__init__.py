"""What a person sees of a run: lines and a display while it goes on, files about single steps."""
