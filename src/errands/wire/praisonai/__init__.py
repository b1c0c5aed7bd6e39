"""PraisonAI's dialect: JSON-RPC like 0.3's, with spellings, error codes and streams of its own.

Reading is as lenient as PraisonAI's own server and drops nothing; writing is what its clients expect. A server reads
`requests` and writes `writing` and `streams`; a client speaks through `DIALECT` of `answers`.
"""
