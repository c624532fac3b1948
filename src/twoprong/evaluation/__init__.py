"""Measuring a defence, and showing what was measured."""
