"""The coordinator serves users: it decides how far ahead the drafter may run, round by round, and streams the text."""
