"""Sends objects between ranks: serializers, and the object collectives."""
