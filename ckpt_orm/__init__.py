"""A LangGraph checkpointer on SQLAlchemy."""
