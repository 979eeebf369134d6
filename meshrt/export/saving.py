def serialize(*a, **k): raise NotImplementedError
