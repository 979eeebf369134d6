def deserialize(b): raise NotImplementedError
