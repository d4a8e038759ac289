"""Operations over time: soaks of all, and streams, whose writes follow one another over TCP."""
