package register

// StreamName is the stream that the register is.
const StreamName = streamName

// Permissions are the subjects that the register's client uses, in the form in which a
// NATS server takes them: no more is needed. What deletes, purges, changes or restores a
// stream, or takes messages out of it, is not among them.
func Permissions() (publish, subscribe []string) {
	const api, consumer = "$JS.API.", "$JS.API.CONSUMER."
	publish = []string{
		subjectAll, subjectFence + ">",
		api + "STREAM.CREATE." + streamName, api + "STREAM.INFO." + streamName, api + "STREAM.MSG.GET." + streamName,
		consumer + "CREATE." + streamName + ".>", consumer + "INFO." + streamName + ".>", consumer + "DELETE." + streamName + ".>",
		consumer + "MSG.NEXT." + streamName + ".>",
		"_INBOX.>", // answers to other instances
	}
	return publish, []string{subjectFence + ">", "_INBOX.>"}
}
