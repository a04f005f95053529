cat <<A; cat <<B
a $(cat <<C
c
C
)
A
b
B
