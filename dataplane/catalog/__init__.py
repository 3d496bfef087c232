"""What is where and how far each row is: the journal folded, by its one writer and by those who follow."""
