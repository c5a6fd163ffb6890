"""What ``make lint`` holds the prose of the project to: plain phrases, and docstrings that fit."""
