// Package warning is how the parts of an instance tell an operator what is wrong: each
// appends what it knows from memory to a list, and status, the exit code of status
// --check and a metric are made from that one list.
//
// A warning has a code, which programs branch on, and a subject, so that the same trouble
// of two partitions is two warnings. The codes are pinned: a code never changes its
// meaning. The operators' guide has the list, and a test holds it against this package.
package warning

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/geogate/geogate/internal/redact"
)

// Code names a kind of trouble.
type Code string

// The codes.
const (
	BaseUnmoved         Code = "BASE_UNMOVED"
	BeyondLimits        Code = "BEYOND_LIMITS"
	CertificateExpires  Code = "CERTIFICATE_EXPIRES"
	ClockAhead          Code = "CLOCK_AHEAD"
	ConnectionFile      Code = "CONNECTION_FILE"
	CopyKeepsAll        Code = "COPY_KEEPS_ALL"
	CutPending          Code = "CUT_PENDING"
	Defect              Code = "DEFECT"
	DiskLow             Code = "DISK_LOW"
	ExpiryHeld          Code = "EXPIRY_HELD"
	FoldFailing         Code = "FOLD_FAILING"
	ForeignRecords      Code = "FOREIGN_RECORDS"
	Gap                 Code = "GAP"
	GapNear             Code = "GAP_NEAR"
	GatewayGone         Code = "GATEWAY_GONE"
	IntervalPastEnd     Code = "INTERVAL_PAST_END"
	KafkaAuthentication Code = "KAFKA_AUTHENTICATION"
	KafkaAuthorization  Code = "KAFKA_AUTHORIZATION"
	KafkaTLS            Code = "KAFKA_TLS"
	KafkaUnreachable    Code = "KAFKA_UNREACHABLE"
	LinkFailed          Code = "LINK_FAILED"
	LinkParked          Code = "LINK_PARKED"
	MalformedRecord     Code = "MALFORMED_RECORD"
	MoreWarnings        Code = "MORE_WARNINGS"
	NativeOrphans       Code = "NATIVE_ORPHANS"
	OutputReplaced      Code = "OUTPUT_REPLACED"
	PartitionHeld       Code = "PARTITION_HELD"
	PartitionNotReady   Code = "PARTITION_NOT_READY"
	PartitionsDiffer    Code = "PARTITIONS_DIFFER"
	PartitionsUneven    Code = "PARTITIONS_UNEVEN"
	PartitionsUnused    Code = "PARTITIONS_UNUSED"
	PatternUnmatched    Code = "PATTERN_UNMATCHED"
	Quarantined         Code = "QUARANTINED"
	RegionRetired       Code = "REGION_RETIRED"
	RegisterDegraded    Code = "REGISTER_DEGRADED"
	RegisterRecordLong  Code = "REGISTER_RECORD_LONG"
	RegisterRegressed   Code = "REGISTER_REGRESSED"
	RegisterRumour      Code = "REGISTER_RUMOUR"
	RegisterUnreachable Code = "REGISTER_UNREACHABLE"
	ResidencyInvalid    Code = "RESIDENCY_INVALID"
	ResidencyStopped    Code = "RESIDENCY_STOPPED"
	RetentionShort      Code = "RETENTION_SHORT"
	SettingsDiffer      Code = "SETTINGS_DIFFER"
	SettingsDisagree    Code = "SETTINGS_DISAGREE"
	Starting            Code = "STARTING"
	TopicBlocked        Code = "TOPIC_BLOCKED"
	UnknownRecord       Code = "UNKNOWN_RECORD"
	UnprovenRecord      Code = "UNPROVEN_RECORD"
	ViewIncomplete      Code = "VIEW_INCOMPLETE"
	WaitsForRegister    Code = "WAITS_FOR_REGISTER"
)

// Codes are all codes.
func Codes() []Code {
	return []Code{
		BaseUnmoved, BeyondLimits, CertificateExpires, ClockAhead, ConnectionFile, CopyKeepsAll, CutPending, Defect, DiskLow, ExpiryHeld, FoldFailing, ForeignRecords, Gap, GapNear, GatewayGone,
		IntervalPastEnd, KafkaAuthentication, KafkaAuthorization, KafkaTLS, KafkaUnreachable, LinkFailed, LinkParked, MalformedRecord, MoreWarnings, NativeOrphans, OutputReplaced,
		PartitionHeld, PartitionNotReady, PartitionsDiffer, PartitionsUneven, PartitionsUnused, PatternUnmatched, Quarantined,
		RegionRetired, RegisterDegraded, RegisterRecordLong, RegisterRegressed, RegisterRumour, RegisterUnreachable, ResidencyInvalid, ResidencyStopped, RetentionShort,
		SettingsDiffer, SettingsDisagree, Starting, TopicBlocked, UnknownRecord, UnprovenRecord, ViewIncomplete, WaitsForRegister,
	}
}

// Severity says whether something is wrong.
type Severity string

// The severities. An Error is something that somebody should act on: with --check,
// geogate status ends with an error for it. A Notice is worth reading and may be meant
// so.
const (
	Error  Severity = "error"
	Notice Severity = "notice"
)

// Severity is what all warnings of a code have, but those of MoreWarnings: it has the
// highest of the warnings that it stands for.
func (c Code) Severity() Severity {
	switch c {
	case CopyKeepsAll, PartitionsUneven, PatternUnmatched, Starting, UnknownRecord:
		return Notice
	}
	return Error
}

// Warning is one thing that an operator should know.
type Warning struct {
	Code Code `json:"code"`
	// Subject is what it is about: a partition ("flights/3"), a topic, a link, a region,
	// a link's partition ("us-eu flights/3").
	Subject string `json:"subject"`
	// Detail is one line: what has happened and what to do. It never has keys or values
	// of records.
	Detail   string   `json:"detail"`
	Severity Severity `json:"severity"`
}

// String is the warning on one line.
func (w Warning) String() string {
	return fmt.Sprintf("%s %s: %s", w.Code, w.Subject, w.Detail)
}

// MaxPerCode bounds the warnings of one code in a list: an operator reads some and
// counts the rest.
const MaxPerCode = 100

// List collects warnings. The zero List is empty. It is not safe for concurrent use.
type List struct {
	byCode map[Code][]Warning
	more   map[Code]int // not kept, beyond MaxPerCode
}

// Add appends a warning; what is beyond MaxPerCode is only counted.
func (l *List) Add(c Code, subject, format string, args ...any) {
	if len(l.byCode[c]) >= MaxPerCode {
		if l.more == nil {
			l.more = make(map[Code]int)
		}
		l.more[c]++
		return
	}
	if l.byCode == nil {
		l.byCode = make(map[Code][]Warning)
	}
	l.byCode[c] = append(l.byCode[c], Warning{c, subject, OneLine(fmt.Sprintf(format, args...)), c.Severity()})
}

// MaxDetail bounds a detail, in bytes: errors of libraries may hold anything.
const MaxDetail = 400

// OneLine is a text without line ends, keys and values, cut to MaxDetail bytes.
func OneLine(s string) string {
	s = strings.Join(strings.Fields(redact.Text(s)), " ")
	if len(s) <= MaxDetail {
		return s
	}
	return strings.ToValidUTF8(s[:MaxDetail], "") + "…"
}

// Count gives how many warnings of each code were added.
func (l *List) Count() map[Code]int {
	out := make(map[Code]int)
	for c, ws := range l.byCode {
		out[c] = len(ws) + l.more[c]
	}
	return out
}

// All gives the warnings, errors first, then by code, and those of one code in the order
// in which they were added. Where some were not kept, MoreWarnings says how many.
func (l *List) All() []Warning {
	out := []Warning{}
	for _, c := range slices.Sorted(maps.Keys(l.byCode)) {
		out = append(out, l.byCode[c]...)
		if n := l.more[c]; n > 0 {
			out = append(out, Warning{MoreWarnings, string(c), fmt.Sprintf("there are %d more warnings %s, which are not listed", n, c), c.Severity()})
		}
	}
	slices.SortStableFunc(out, func(a, b Warning) int { return cmp.Compare(a.Severity, b.Severity) }) // "error" < "notice"
	return out
}
