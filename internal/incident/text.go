package incident

import (
	"fmt"

	"github.com/geogate/geogate/internal/event"
)

// Names gives the names of regions.
type Names func(event.RegionID) string

// Meaning says in plain words what an incident means for those who use the topic.
func (x *Incident) Meaning(names Names) string {
	region := names(x.Origin)
	switch x.Kind {
	case Link:
		to := names(x.To)
		return fmt.Sprintf("%s were deleted before the link to %s had copied them: views and reads in %s lack them and whatever they changed, while %s may show them. Until the incident is accepted the link copies nothing more of this partition", x.lost(region), to, to, region)
	case Fold:
		return fmt.Sprintf("%s were deleted before this region had folded them: its views and reads lack them and whatever they changed, while other regions may have them. Until the incident is accepted the region folds nothing of %s in this partition, and refuses writes with an idempotency key there", x.lost(region), region)
	case Keys:
		return fmt.Sprintf("%s were deleted before the index of idempotency keys, whose store was lost, had been rebuilt from them: a write that is retried with a key from among them would count twice. Writes with an idempotency key are refused in this partition until the window has passed or the incident is accepted; those without one are stored", x.lost(region))
	case History:
		return fmt.Sprintf("%s were deleted, and the store that had indexed them was lost: views show them as before, but if a later fence makes orphans of newer records, the region cannot bring back what those had replaced, and may show another value than other regions", x.lost(region))
	case Cut:
		return fmt.Sprintf("%s lie past a cut in the ownership register and were deleted before this region had taken out again what it had folded of them: its views go on showing orphans that other regions do not show", x.lost(region))
	case Internal:
		return fmt.Sprintf("%s were deleted, by kafka-delete-records.sh or under another cleanup.policy: this is a topic of geogate's own that is read from its beginning, so an instance that starts without its store does not know what they said", x.lost(region))
	case Truncated:
		return fmt.Sprintf("%s are gone from the end of the log, which this region has read and told others of: an unclean election of its leader, or a disk, has lost them. What is written at those offsets now would be taken for what was there. The partition takes no writes, and its views stay as they are, until the incident is accepted", x.lost(region))
	}
	return fmt.Sprintf("%s were lost", x.lost(region))
}

// Remedy says what to do before accepting, or instead.
func (x *Incident) Remedy() string {
	switch x.Kind {
	case Fold:
		return "if another region still has the records, write the values that matter again there; find out why the region lagged longer than its Kafka keeps records, and raise retention.ms or retention.bytes; then accept"
	case Keys:
		return "wait for the window if producers may retry; raise retention.ms and retention.bytes above the idempotency window; accept if no producer retries writes that old"
	case History:
		return "keep data_dir on a disk that survives; accept to take note"
	case Link:
		return "read in this region what was lost, and write the values that matter again: they are copied once the incident is accepted. Find out why the link lagged longer than this Kafka keeps records, and raise retention.ms or retention.bytes; then accept"
	case Cut:
		return "compare the entities with another region and write what is right again; then accept"
	case Internal:
		return "find out who deleted them; keep data_dir on a disk that survives; accept to take note"
	case Truncated:
		return "bring the log back as it was, from the replica or the disk that has it, before anybody writes there; then accept. If it is lost, copy what is left of the topic, delete the topic and create it again, which begins a new log, write what matters again, and accept"
	}
	return "accept to go on"
}

// Consequence says what accepting does, and what will be missing where.
func (x *Incident) Consequence(names Names) string {
	switch x.Kind {
	case Link:
		to := names(x.To)
		return fmt.Sprintf("the link to %s goes on at offset %d; %s will be missing in %s for good: in its copy, its views and its index of idempotency keys, so a retry there with a key from among them is stored a second time; nothing says so in reads of %s", to, x.Until, x.offsets(), to, to)
	case Fold:
		return fmt.Sprintf("the fold goes on at offset %d; what was lost is in no view of this region, and nothing says so in reads any more", x.Until)
	case Keys:
		return "writes with an idempotency key are taken again; a retry with a key that was lost is stored a second time"
	case History, Internal:
		return "the warning ends; nothing else changes"
	case Cut:
		return "the cut comes into force; orphans that were lost stay in the views of this region"
	case Truncated:
		return fmt.Sprintf("the partition goes on as soon as its log ends at offset %d or later. What lies below is taken for what was there before: if it is something else, this region and others show different values for good", x.Until)
	}
	return fmt.Sprintf("the reader goes on at offset %d", x.Until)
}

func (x *Incident) offsets() string {
	if x.Count() == 1 {
		return fmt.Sprintf("1 record (offset %d)", x.From)
	}
	return fmt.Sprintf("up to %d records (offsets %d to %d)", x.Count(), x.From, x.Until-1)
}

func (x *Incident) lost(region string) string {
	if x.Origin == 0 {
		return fmt.Sprintf("%s of %s/%d", x.offsets(), x.Name, x.Partition)
	}
	return fmt.Sprintf("%s of %s in %s/%d", x.offsets(), region, x.Name, x.Partition)
}
