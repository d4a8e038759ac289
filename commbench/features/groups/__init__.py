"""Operations of several groups of ranks at once: what they cost each other, and what is won."""
