touch a1 a2 b1; echo a* [ab]1 {x,y}{1,2} ?1; echo nomatch*; shopt -s failglob; echo nomatch*; echo never
