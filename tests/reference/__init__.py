"""Reference implementations, test cases, stand-ins and builders of input files that several tests share.

`network`, `serial` and `pipelines` implement training by definition, in one process and float64, with arrays of shape
(samples, features); they import nothing from hybridnn.
"""
