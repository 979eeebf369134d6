"""The per-device program: values, operations, regions, functions (`program`), walks over them (`walker`), and its text
(`printer`).
"""
