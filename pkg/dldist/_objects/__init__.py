"""Sending of objects between ranks: serializers and object collectives."""
