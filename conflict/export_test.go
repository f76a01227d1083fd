package conflict

// GroupCopies gives tests the grouping of the copies of a key.
var GroupCopies = groupCopies
