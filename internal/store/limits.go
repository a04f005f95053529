package store

// MaxObject is the most bytes that an object may have. What is larger is a content.
const MaxObject = maxObject
