"""Recipes, shipped as package data: short YAML files, each opening with its hardware, time and expected number."""
