package strict

// Nearest gives the known name that a person who wrote name most likely meant,
// or "" when none is close. Close means at most a third of the longer name's
// characters (at least one) changed, dropped, added or swapped with a neighbour.
// Of equally close names the first wins.
func Nearest(name string, known []string) string {
	best, bestDistance := "", -1
	for _, candidate := range known {
		limit := max(1, max(len([]rune(name)), len([]rune(candidate)))/3)
		distance := editDistance([]rune(name), []rune(candidate), limit)
		if distance <= limit && (bestDistance < 0 || distance < bestDistance) {
			best, bestDistance = candidate, distance
		}
	}
	return best
}

// editDistance counts insertions, deletions, changes and swaps of neighbours. It
// gives limit+1 at once when the lengths alone differ by more than limit, so
// that a hostile long key costs nothing.
func editDistance(a, b []rune, limit int) int {
	if diff := len(a) - len(b); diff > limit || -diff > limit {
		return limit + 1
	}
	// Three rows suffice: a swap looks two rows back.
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}
