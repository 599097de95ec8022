"""The prediction model beside published speeds: python tools/prediction NAME."""
