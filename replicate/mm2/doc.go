// Package mm2 reads the configuration file of Apache Kafka's MirrorMaker 2, as it is given
// to connect-mirror-maker.sh, and says what becomes of each of its settings in geogate.
//
// How MirrorMaker 2 reads the file: java.util.Properties, then the classes MirrorMakerConfig,
// MirrorConnectorConfig, MirrorSourceConfig, MirrorCheckpointConfig and MirrorHeartbeatConfig
// of Apache Kafka (KIP-382, KIP-618, KIP-710).
package mm2
