# SPDX-License-Identifier: Apache-2.0
"""Submit a question to a fleet as a job of Spark, whose result is Parquet.

spark-submit spark_job.py STORE RESULT 'SQL' EVENT [EVENT...]

STORE is a folder that all workers have, or s3a:// if the cluster has the connector. Rows of
segments without a commit are left out. Times are ns since 1970, as Spark's own have µs.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession
from pyspark.sql.functions import col, regexp_extract


def main(store: str, result: str, sql: str, *events: str) -> None:
    """Make a view of each event, and write the rows of the statement."""
    spark = (
        SparkSession.builder.appName("collectord fleet")
        .config("spark.sql.legacy.parquet.nanosAsLong", "true")
        .config("spark.sql.sources.partitionColumnTypeInference.enabled", "false")
        .getOrCreate()
    )
    ledger = spark.read.format("binaryFile").load(f"{store}/ledger/date=*/host=*/*.json")
    source = regexp_extract(col("path"), r"([0-9a-f]{64})\.json$", 1)
    committed = ledger.select(source.alias("source_sha256"))
    for event in events:
        rows = (
            spark.read.option("basePath", f"{store}/events")
            .option("mergeSchema", "true")
            .parquet(f"{store}/events/event={event}")
        )
        of_row = regexp_extract(col("_metadata.file_name"), r"^([0-9a-f]{64})-", 1)
        whole = rows.withColumn("source_sha256", of_row).join(
            committed, "source_sha256", "leftsemi"
        )
        whole.createOrReplaceTempView(f"`{event}`")
    spark.sql(sql).write.parquet(result)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
