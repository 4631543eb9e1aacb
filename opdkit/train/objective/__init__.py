"""Objectives of training: advantages, losses, and the terms that combine them. Pure functions on tensors."""
